// The headers of the standard library that most files include. A CPU build with g++ precompiles them once and loads the
// result before each file, which cuts compile time to two thirds. No file includes this header: each names the headers
// it uses, because a CUDA build has no such precompiled header.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
