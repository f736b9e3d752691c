// Loaded in front of OpenBLAS (LD_PRELOAD) by tests.
//
//   PRODUCTS_LOG=FILE          when the program ends, writes the most rows and the most columns of any product that it asked
//                              OpenBLAS for, as "ROWS COLUMNS", and how many products that were, as "products COUNT"
//   PRODUCTS_WRONG=FIRST-LAST  plays a wrong GPU: the first number of these products, counted from 1, has other bits
//   PRODUCTS_NAN=FIRST-LAST    it is NaN
//   PRODUCTS_RANK=RANK         only on this rank
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int most_rows, most_columns, products;

static void raise_to(int* most, int value) {
  int before = __atomic_load_n(most, __ATOMIC_RELAXED);
  while (value > before && !__atomic_compare_exchange_n(most, &before, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// A test may set the variable between two products.
static int is_one_of(const char* variable, int product) {
  const char *range = getenv(variable), *rank = getenv("PRODUCTS_RANK"), *own = getenv("OMPI_COMM_WORLD_RANK");
  int first = 0, last = 0;
  if (!range || (rank && strcmp(rank, own ? own : "0") != 0)) return 0;
  return sscanf(range, "%d-%d", &first, &last) == 2 && product >= first && product <= last;
}

// The parameters of cblas.h, whose enumerations are ints.
void cblas_sgemm(int order, int transpose_a, int transpose_b, int M, int N, int K, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc) {
  void (*product)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int) =
      dlsym(RTLD_NEXT, "cblas_sgemm");
  const int number = __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
  raise_to(&most_rows, M), raise_to(&most_columns, N);
  product(order, transpose_a, transpose_b, M, N, K, alpha, a, lda, b, ldb, beta, c, ldc);
  if (is_one_of("PRODUCTS_WRONG", number)) c[0] = c[0] * 1.25f + 0.125f;
  if (is_one_of("PRODUCTS_NAN", number)) c[0] = NAN;
}

// How many products there were so far, for a test that looks the symbol up.
int products_so_far(void) { return __atomic_load_n(&products, __ATOMIC_RELAXED); }

__attribute__((destructor)) static void write_most(void) {
  const char* path = getenv("PRODUCTS_LOG");
  FILE* file = path && most_rows ? fopen(path, "w") : NULL;
  if (!file) return;
  fprintf(file, "%d %d\nproducts %d\n", most_rows, most_columns, products);
  fclose(file);
}
