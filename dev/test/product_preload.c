// Loaded in front of OpenBLAS (LD_PRELOAD) by the test `tuning`: writes the most rows and the most columns of any product
// that the program asks OpenBLAS for to the file PRODUCTS_LOG, as "ROWS COLUMNS", when the program ends.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static int most_rows, most_columns;

static void raise_to(int* most, int value) {
  int before = __atomic_load_n(most, __ATOMIC_RELAXED);
  while (value > before && !__atomic_compare_exchange_n(most, &before, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// The parameters of cblas.h, whose enumerations are ints.
void cblas_sgemm(int order, int transpose_a, int transpose_b, int M, int N, int K, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc) {
  void (*product)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int) =
      dlsym(RTLD_NEXT, "cblas_sgemm");
  raise_to(&most_rows, M), raise_to(&most_columns, N);
  product(order, transpose_a, transpose_b, M, N, K, alpha, a, lda, b, ldb, beta, c, ldc);
}

__attribute__((destructor)) static void write_most(void) {
  const char* path = getenv("PRODUCTS_LOG");
  FILE* file = path && most_rows ? fopen(path, "w") : NULL;
  if (!file) return;
  fprintf(file, "%d %d\n", most_rows, most_columns);
  fclose(file);
}
