# HEADRACE_PCH: the headers of libraries that most files include, parsed once for the product and once for the tests.
# Targets that are compiled with options of their own (the CPU kernels') go without.
set(library_headers <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstring> <filesystem> <fstream>
                    <functional> <map> <memory> <mutex> <optional> <set> <span> <sstream> <string> <thread>
                    <unordered_map> <utility> <vector> <nlohmann/json.hpp>)

function(headrace_precompiled name)  # a library that holds nothing else
  file(CONFIGURE OUTPUT ${name}.cc CONTENT "")
  add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE headrace_options nlohmann_json::nlohmann_json ${ARGN})
  target_precompile_headers(${name} PRIVATE ${library_headers})
endfunction()

function(headrace_use_precompiled folder)
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(options ${target} COMPILE_OPTIONS)
    if(options OR folder MATCHES "/tests/fuzz$")
      continue()
    endif()
    if(folder MATCHES "/tests" AND type MATCHES "STATIC_LIBRARY|EXECUTABLE")
      target_precompile_headers(${target} REUSE_FROM headrace_precompiled_tests)
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
    elseif(type STREQUAL "STATIC_LIBRARY")
      target_precompile_headers(${target} REUSE_FROM headrace_precompiled)
    endif()
  endforeach()
  foreach(sub IN LISTS folders)
    headrace_use_precompiled(${sub})
  endforeach()
endfunction()

headrace_precompiled(headrace_precompiled)
headrace_precompiled(headrace_precompiled_tests GTest::gtest)
target_precompile_headers(headrace_precompiled_tests PRIVATE <gtest/gtest.h>)
headrace_use_precompiled(${PROJECT_SOURCE_DIR})
