/* The fake driver with its kernels, as one library. */
#include "libcuda.c"
#include "stand_in.c"
