// Packages of PyTorch behind functions of C: exceptions become messages.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

using Package = torch::inductor::AOTIModelPackageLoader;

namespace {

void tell(const char* what, char* reason, size_t room) {
  std::strncpy(reason, what, room - 1);
  reason[room - 1] = '\0';
}

template <typename Call>
bool succeeds(char* reason, size_t room, Call call) {
  try {
    call();
    return true;
  } catch (const c10::Error& error) {
    tell(error.what_without_backtrace(), reason, room);
  } catch (const std::exception& error) {
    tell(error.what(), reason, room);
  } catch (...) {
    tell("it threw something that is no exception", reason, room);
  }
  return false;
}

// Packages compare their inputs with the shapes that they were compiled for only where this is set. It is set before `main`, when there
// is one thread.
[[maybe_unused]] const int checks = setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 1);

}  // namespace

extern "C" {

// Loads the package that is unpacked in a folder; null and a reason if it cannot be loaded.
Package* tidemill_package_load(const char* folder, char* reason, size_t room) {
  Package* package = nullptr;
  succeeds(reason, room, [&] { package = new Package(folder, "model", /*run_single_threaded=*/true); });
  return package;
}

// Runs a package. The first `most` outputs are the caller's; `found` is how many there are. False and a reason if it fails.
bool tidemill_package_run(
    Package* package,
    const at::Tensor* const* inputs,
    size_t count,
    at::Tensor** outputs,
    size_t most,
    size_t* found,
    char* reason,
    size_t room) {
  return succeeds(reason, room, [&] {
    std::vector<at::Tensor> tensors;
    for (size_t at = 0; at < count; at++) tensors.push_back(*inputs[at]);
    std::vector<at::Tensor> results = package->boxed_run(std::move(tensors));
    *found = results.size();
    for (size_t at = 0; at < results.size() && at < most; at++) outputs[at] = new at::Tensor(results[at]);
  });
}

void tidemill_package_free(Package* package) {
  delete package;
}

}
