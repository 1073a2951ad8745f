"""Every piece of device work, whoever submitted it: the shim before the driver, what it saw, and to which boundary it belongs."""
