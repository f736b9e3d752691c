// Covers: whichever file of a run's folder is written first after the folder was removed or replaced, the error names
// the folder and ends the run with code 3; a checkpoint that another process saved while a run started ends the start;
// exit codes tell the user's mistakes from those of disks and libraries
#include <filesystem>
#include <fstream>
#include <new>
#include <system_error>

#include "dev/test/error_of.h"
#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/run/resume.h"
#include "llmc/run/run_folder.h"
#include "llmc/train/checkpoint.h"

namespace {

// Removes the folder of a run, does what the run would do next, and returns the error's code and text.
template <class Next>
std::string after_removal(const Next& next) {
  TemporaryFolder folder;
  RunFolder run(folder / "run", "tiny");
  run.write_about(Json::object(), Json::object(), Json::object(), "plan");
  std::filesystem::remove_all(folder / "run");
  try {
    next(run);
  } catch (const Error& error) {
    CHECK(error.exit_code == ExitCode::not_saved);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a folder that was removed is named, whatever is written next") {
  const std::string named = "was removed, moved or replaced while the run wrote there";
  says(after_removal([](RunFolder& run) { run.write_memory("plan"); }), named);
  says(after_removal([](RunFolder& run) { run.log(Json::object()); }), named);
  says(after_removal([](RunFolder& run) { run.require_there(); }), named);
}

TEST_CASE("a checkpoint that another process saved while a run started ends the start") {
  TemporaryFolder folder;
  const auto save = [&](int64_t step) {
    const std::string path = checkpoint_path(folder / "run/checkpoints", step);
    std::filesystem::create_directories(path);
    std::ofstream(path + "/manifest.json") << "{}";
  };
  save(6);
  std::ofstream(folder / "run/train.jsonl").close();
  Options options;
  options.resume = "auto", options.out = folder / "run";
  const ResumePoint found = *ResumePoint::find(options);
  found.require_newest();
  save(17);
  says(error_of([&] { found.require_newest(); }), "step-00000017 was saved while this run started");
}

TEST_CASE("exit codes tell the user's mistakes from those of disks and libraries") {
  const auto code_of = [](const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      return exit_code_of(error);
    }
    return ExitCode::done;
  };
  CHECK(int(code_of([] { fail("an option"); })) == 64);
  CHECK(int(code_of([] { throw std::system_error(EAGAIN, std::generic_category(), "no thread"); })) == 1);
  CHECK(code_of([] { throw std::bad_alloc(); }) == ExitCode::does_not_fit);
  TemporaryFolder folder;
  CHECK(code_of([&] { InputFile(folder / "nothing"); }) == ExitCode::wrong_input);
  const auto refused = [](int error) {
    return [error] {
      errno = error;
      REQUIRE_FILE(false, lost, "a file");
    };
  };
  for (const int error : {EIO, ESTALE, ETIMEDOUT, EROFS, EMFILE}) CHECK(code_of(refused(error)) == ExitCode::lost);
  CHECK(code_of(refused(EACCES)) == ExitCode::wrong_input);
}
