/* An extension as people write them: functions that take tensors, and work on their memory without torch's knowing. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* What goes wrong from now on, in the one function that is asked first; set by tests, by name. 0: nothing */
__attribute__((visibility("default"))) int outside_fault = 0;
enum { NOTHING, FUSED, FUSED_SKIPS, SCALE, AFTER };

static int wrong(int which) {
  if (outside_fault != which) return 0;
  outside_fault = NOTHING;
  return 1;
}

static float *memory(PyObject *tensor, Py_ssize_t *count) {
  PyObject *address = PyObject_CallMethod(tensor, "data_ptr", NULL);
  PyObject *numel = address == NULL ? NULL : PyObject_CallMethod(tensor, "numel", NULL);
  float *found = NULL;
  if (numel != NULL) {
    found = (float *)PyLong_AsVoidPtr(address);
    *count = PyLong_AsSsize_t(numel);
  }
  Py_XDECREF(address);
  Py_XDECREF(numel);
  return found;
}

/* y = x * factor + shift; fused, as no operator of torch does it */
static PyObject *fused(PyObject *self, PyObject *args, PyObject *named) {
  static char *names[] = {"x", "y", "factor", "shift", NULL};
  PyObject *x, *y;
  double factor = 1, shift = 0;
  Py_ssize_t n, m;
  (void)self;
  if (!PyArg_ParseTupleAndKeywords(args, named, "OO|dd", names, &x, &y, &factor, &shift)) return NULL;
  float *from = memory(x, &n), *to = memory(y, &m);
  if (PyErr_Occurred()) return NULL;
  if (wrong(FUSED_SKIPS)) Py_RETURN_NONE;
  for (Py_ssize_t at = 0; at < n && at < m; at++) to[at] = from[at] * (float)factor + (float)shift;
  if (m && wrong(FUSED)) to[m - 1] += 0.25f;
  Py_RETURN_NONE;
}

static PyObject *scale_(PyObject *self, PyObject *args) {
  PyObject *x;
  double factor;
  Py_ssize_t n;
  (void)self;
  if (!PyArg_ParseTuple(args, "Od", &x, &factor)) return NULL;
  float *at = memory(x, &n);
  if (PyErr_Occurred()) return NULL;
  for (Py_ssize_t index = 0; index < n; index++) at[index] *= (float)factor;
  if (n && wrong(SCALE)) at[0] += 0.25f;
  Py_INCREF(x);
  return x;
}

static PyObject *sum(PyObject *self, PyObject *x) {
  Py_ssize_t n;
  double total = 0;
  (void)self;
  float *at = memory(x, &n);
  if (PyErr_Occurred()) return NULL;
  for (Py_ssize_t index = 0; index < n; index++) total += at[index];
  return PyFloat_FromDouble(total);
}

/* What a function of the program makes, doubled behind its back if asked */
static PyObject *after(PyObject *self, PyObject *args) {
  PyObject *function, *x;
  int doubled;
  Py_ssize_t n;
  (void)self;
  if (!PyArg_ParseTuple(args, "OOp", &function, &x, &doubled)) return NULL;
  PyObject *made = PyObject_CallOneArg(function, x);
  if (made == NULL || !doubled) return made;
  float *at = memory(made, &n);
  if (PyErr_Occurred()) return NULL;
  for (Py_ssize_t index = 0; index < n; index++) at[index] *= 2;
  if (n && wrong(AFTER)) at[0] += 0.25f;
  return made;
}

static PyObject *fails(PyObject *self, PyObject *x) {
  Py_ssize_t n;
  (void)self;
  float *at = memory(x, &n);
  if (PyErr_Occurred()) return NULL;
  if (n) at[0] += 1;
  PyErr_SetString(PyExc_ValueError, "half done");
  return NULL;
}

/* Every tensor of a list, or under a dict's keys */
static PyObject *scale_all(PyObject *self, PyObject *args) {
  PyObject *many;
  double factor;
  (void)self;
  if (!PyArg_ParseTuple(args, "Od", &many, &factor)) return NULL;
  PyObject *list = PyDict_Check(many) ? PyDict_Values(many) : PySequence_List(many);
  if (list == NULL) return NULL;
  for (Py_ssize_t which = 0; which < PyList_GET_SIZE(list); which++) {
    Py_ssize_t n;
    float *at = memory(PyList_GET_ITEM(list, which), &n);
    if (PyErr_Occurred()) break;
    for (Py_ssize_t index = 0; index < n; index++) at[index] *= (float)factor;
  }
  Py_DECREF(list);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"fused", (PyCFunction)(void (*)(void))fused, METH_VARARGS | METH_KEYWORDS, NULL},
    {"scale_", scale_, METH_VARARGS, NULL},
    {"sum", sum, METH_O, NULL},
    {"after", after, METH_VARARGS, NULL},
    {"fails", fails, METH_O, NULL},
    {"scale_all", scale_all, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "outside_extension", NULL, -1, methods, NULL, NULL, NULL, NULL};

/* For ctypes: no Python at all */
__attribute__((visibility("default"))) void plain_scale(float *at, long count, double factor) {
  for (long index = 0; index < count; index++) at[index] *= (float)factor;
}

PyMODINIT_FUNC PyInit_outside_extension(void) { return PyModule_Create(&definition); }
