// A library that NVTX loads (NVTX_INJECTION64_PATH) in the place of Nsight Systems: it writes the ranges to the file
// NVTX_LOG, a line for each, indented by depth, and "unbalanced" for an end without a beginning.
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

static FILE* log_file;
static int depth;

static int push(const char* name) {
  fprintf(log_file, "%*s%s\n", 2 * depth, "", name);
  return depth++;
}
static int pop(void) {
  if (depth == 0) fprintf(log_file, "unbalanced\n");
  fflush(log_file);
  return depth > 0 ? --depth : -1;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const NvtxExportTableCallbacks* callbacks = get_export_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table;
  unsigned size;
  log_file = fopen(getenv("NVTX_LOG"), "w");
  if (!log_file || !callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
