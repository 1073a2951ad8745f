/* The launch path as an extension module: what Python calls, and the capsule `og_probe_api` for C callers.
 *
 *   operator -> submit (submit.h) -> kernel (fingerprint.cu) -> ring in device memory -> copier (copier.h) -> take
 *
 * Built on first use by the system's compiler (builds); includes neither torch's nor CUDA's headers. It cannot see whether an address is
 * valid or its memory was written: the caller vouches.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "submit.h"

static PyObject *py_load(PyObject *self, PyObject *argument) {
    (void)self;
    char why[512];
    const char *path = PyUnicode_AsUTF8(argument);
    if (!path) return NULL;
    if (driver.library) Py_RETURN_NONE;
    Driver found = {0};
    if (load_driver(&found, path, why, sizeof why)) return PyErr_SetString(PyExc_OSError, why), NULL;
    int error = found.cuInit(0);
    if (error) return PyErr_Format(PyExc_OSError, "the CUDA driver in %s did not start: %s", path, error_name(&found, error)), NULL;
    if (start_delivery(&delivery)) return PyErr_NoMemory();
    if (pthread_atfork(NULL, NULL, after_fork_in_child)) return PyErr_NoMemory();
    driver = found;
    Py_RETURN_NONE;
}

static PyObject *py_open(PyObject *self, PyObject *arguments) {
    (void)self;
    int ordinal;
    PyObject *handles;
    unsigned capacity;
    unsigned long long site_bytes;
    void *kernels[OG_NUM_KERNELS];
    char why[256];
    if (!PyArg_ParseTuple(arguments, "iO!IK", &ordinal, &PyTuple_Type, &handles, &capacity, &site_bytes)) return NULL;
    if (!driver.library || is_forked) return PyErr_SetString(PyExc_RuntimeError, "no driver is loaded in this process"), NULL;
    if (ordinal < 0 || ordinal >= MAX_DEVICES || PyTuple_GET_SIZE(handles) != OG_NUM_KERNELS || capacity < OG_MAX_SEGMENTS ||
        (capacity & (capacity - 1)))
        return PyErr_SetString(PyExc_ValueError, "device, number of kernels or capacity (a power of two, at least 64) out of range"), NULL;
    for (int k = 0; k < OG_NUM_KERNELS; k++)
        if (!(kernels[k] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(handles, k))) && PyErr_Occurred()) return NULL;
    int failed = open_device(ordinal, kernels, capacity, site_bytes, why, sizeof why);
    if (failed) return PyErr_SetString(PyExc_RuntimeError, why), NULL;
    Py_RETURN_NONE;
}

/* (address, template): the template is an og_view, of which the address alone differs from call to call. */
static int read_views(PyObject *pairs, og_view *views, Py_ssize_t n) {
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, k), *form;
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyBytes_Check(form = PyTuple_GET_ITEM(pair, 1)) ||
            PyBytes_GET_SIZE(form) != sizeof(og_view))
            return PyErr_SetString(PyExc_TypeError, "a view is (address, bytes of an og_view)"), -1;
        memcpy(&views[k], PyBytes_AS_STRING(form), sizeof(og_view));
        views[k].data = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 0));
        if (views[k].data == (uint64_t)-1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static PyObject *py_submit(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    enum { ON_STACK = 4 };
    og_view few[ON_STACK], *views = few;
    if (count != 4 || !PyTuple_Check(arguments[2])) return PyErr_SetString(PyExc_TypeError, "submit(device, stream, views, flags)"), NULL;
    long ordinal = PyLong_AsLong(arguments[0]);
    void *stream = PyLong_AsVoidPtr(arguments[1]);
    unsigned long flags = PyLong_AsUnsignedLong(arguments[3]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(arguments[2]);
    if (n > ON_STACK && !(views = PyMem_Malloc((size_t)n * sizeof *views))) return PyErr_NoMemory();
    uint64_t first = 0;
    int failed = read_views(arguments[2], views, n);
    if (!failed) {
        /* A launch blocks while about a thousand are queued, and what it then waits for may need the GIL. */
        Py_BEGIN_ALLOW_THREADS
        first = api_submit((int32_t)ordinal, stream, views, (int32_t)n, (uint32_t)flags);
        Py_END_ALLOW_THREADS
    }
    if (views != few) PyMem_Free(views);
    return failed ? NULL : PyLong_FromUnsignedLongLong(first);
}

/* As `submit`, of og_views that lie one after another in memory: nothing is made or copied for each. */
static PyObject *py_submit_views(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    if (count != 4) return PyErr_SetString(PyExc_TypeError, "submit_views(device, stream, views, flags)"), NULL;
    long ordinal = PyLong_AsLong(arguments[0]);
    void *stream = PyLong_AsVoidPtr(arguments[1]);
    unsigned long flags = PyLong_AsUnsignedLong(arguments[3]);
    Py_buffer views;
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[2], &views, PyBUF_SIMPLE)) return NULL;
    uint64_t first = 0;
    int fits = views.len % (Py_ssize_t)sizeof(og_view) == 0 && views.len / (Py_ssize_t)sizeof(og_view) <= INT32_MAX;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        first = api_submit((int32_t)ordinal, stream, views.buf, (int32_t)(views.len / (Py_ssize_t)sizeof(og_view)), (uint32_t)flags);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&views);
    return fits ? PyLong_FromUnsignedLongLong(first) : (PyErr_SetString(PyExc_ValueError, "no whole number of og_views"), NULL);
}

/* Finished records as they lie in memory, og_record after og_record. */
static PyObject *py_take(PyObject *self, PyObject *argument) {
    (void)self;
    enum { AT_ONCE = 256 };
    og_record *records = NULL;
    long left = PyLong_AsLong(argument);
    size_t taken = 0, room = 0;
    if (left == -1 && PyErr_Occurred()) return NULL;
    while (left > 0) {
        if (taken + AT_ONCE > room) {
            room = room ? 2 * room : AT_ONCE;
            og_record *larger = PyMem_Realloc(records, room * sizeof *records);
            if (!larger) break; /* what is left comes next time */
            records = larger;
        }
        int32_t n = api_take(records + taken, left < AT_ONCE ? (int32_t)left : AT_ONCE);
        taken += (size_t)n, left -= n;
        if (n < AT_ONCE) break;
    }
    PyObject *out = PyBytes_FromStringAndSize((const char *)records, (Py_ssize_t)(taken * sizeof *records));
    PyMem_Free(records);
    return out;
}

static PyObject *py_wait(PyObject *self, PyObject *arguments) {
    (void)self;
    unsigned long long ticket;
    long long timeout_ns;
    if (!PyArg_ParseTuple(arguments, "KL", &ticket, &timeout_ns)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    api_wait(ticket, timeout_ns);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_submitted(PyObject *self, PyObject *none) { return (void)self, (void)none, PyLong_FromUnsignedLongLong(api_submitted()); }

static PyObject *py_last_error(PyObject *self, PyObject *none) { return (void)self, (void)none, PyUnicode_FromString(last_error); }

static PyObject *py_close(PyObject *self, PyObject *argument) {
    (void)self;
    long long patience_ns = PyLong_AsLongLong(argument);
    if (patience_ns == -1 && PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    close_devices(patience_ns);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_report(PyObject *self, PyObject *argument) {
    (void)self;
    long ordinal = PyLong_AsLong(argument);
    if (ordinal < 0 || ordinal >= MAX_DEVICES || is_forked || !devices[ordinal].is_open)
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "the device was not opened"), NULL);
    pthread_mutex_lock(&delivery.mutex);
    Device d = devices[ordinal];
    Delivery all = delivery;
    pthread_mutex_unlock(&delivery.mutex);
    return Py_BuildValue("{sKsKsIsKsKsKsKsKsKsKsKsKsKsKss}", "device_bytes", d.device_bytes, "pinned_bytes", d.pinned_bytes, "ring_records",
                         d.capacity, "launches", d.launches, "copies", d.copies, "copies_repeated", d.retries, "waits_for_copier", d.waits,
                         "captured", d.captured, "captured_room_bytes", d.sites_end - d.sites, "left_out_on_device", d.lost_seen, "tickets",
                         all.next_ticket - 1, "delivered", all.count_delivered, "lost", all.count_lost, "replays_lost", all.count_holes,
                         "failed", d.failed);
}

static PyMethodDef methods[] = {
    {"load", py_load, METH_O, "load(path): find the driver; OSError says why not"},
    {"open", py_open, METH_VARARGS, "open(device, kernels, ring_records, captured_bytes): take memory, start the copier"},
    {"submit", (PyCFunction)(void (*)(void))py_submit, METH_FASTCALL, "submit(device, stream, ((address, view), ...), flags) -> first ticket, 0: see last_error"},
    {"submit_views", (PyCFunction)(void (*)(void))py_submit_views, METH_FASTCALL, "submit_views(device, stream, buffer of og_views, flags): as submit"},
    {"take", py_take, METH_O, "take(max) -> bytes of finished og_records"},
    {"wait", py_wait, METH_VARARGS, "wait(ticket, timeout_ns)"},
    {"submitted", py_submitted, METH_NOARGS, "tickets given out"},
    {"last_error", py_last_error, METH_NOARGS, "of this thread's last submit"},
    {"report", py_report, METH_O, "report(device) -> counters"},
    {"close", py_close, METH_O, "close(patience_ns): wait for what is on its way, no longer than this without a delivery; end the copiers"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "opguard_launch", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_opguard_launch(void) {
    PyObject *made = PyModule_Create(&module), *capsule = PyCapsule_New(&api, "og_probe_api", NULL);
    PyObject *names = PyTuple_New(OG_NUM_KERNELS);
    for (int k = 0; names && k < OG_NUM_KERNELS; k++) PyTuple_SET_ITEM(names, k, PyUnicode_FromString(OG_KERNELS[k]));
    if (!made || !capsule || !names || PyModule_AddObject(made, "api", capsule) || PyModule_AddObject(made, "KERNELS", names) ||
        PyModule_AddIntConstant(made, "VIEW_BYTES", sizeof(og_view)) ||
        PyModule_AddIntConstant(made, "RECORD_BYTES", sizeof(og_record)) || PyModule_AddIntConstant(made, "MAX_DIMS", OG_MAX_DIMS))
        return NULL;
    return made;
}
