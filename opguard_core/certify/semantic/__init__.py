"""Named calls and values of two runs compared: what two code bases have in common where their insides cannot be paired."""
