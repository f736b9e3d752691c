// Covers: run.json lists the hosts of a run with their ranks and GPUs
#include "dev/test/test.h"
#include "llmc/run/start_record.h"

TEST_CASE("hosts are listed in the order of their first ranks, with ranges of ranks") {
  const std::vector<std::string> of_ranks = {"b\nH200\nGPU-1", "b\nH200\nGPU-2", "a\nH200\nGPU-3", "b\nH200\nGPU-4",
                                             "a\nH100\nGPU-5"};
  CHECK(hosts_json(of_ranks).dump() ==
        R"([{"host":"b","ranks":"0-1,3","device":"H200","gpus":["GPU-1","GPU-2","GPU-4"]},)"
        R"({"host":"a","ranks":"2","device":"H200","gpus":["GPU-3"]},)"
        R"({"host":"a","ranks":"4","device":"H100","gpus":["GPU-5"]}])");
}

TEST_CASE("a CPU has no GPUs, and a name of any bytes is made printable") {
  CHECK(hosts_json({"\xff\nCPU (2 threads)\n"}).dump() ==
        "[{\"host\":\"\xef\xbf\xbd\",\"ranks\":\"0\",\"device\":\"CPU (2 threads)\"}]");
}
