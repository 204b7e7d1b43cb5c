# Writes OUTPUT, a C++ source that defines farthing::kernel_version: a digest of the names and the
# contents of the SOURCES (relative to ROOT) and of SETTINGS, so that whatever is computed by other
# code than this is told apart without anybody counting versions.
set(lines "${SETTINGS}\n")
list(SORT SOURCES)
foreach(source IN LISTS SOURCES)
  file(SHA256 "${ROOT}/${source}" digest)
  string(APPEND lines "${digest}  ${source}\n")
endforeach()
string(SHA256 version "${lines}")
string(SUBSTRING "${version}" 0 32 version)
file(
  WRITE "${OUTPUT}"
  "namespace farthing {\nextern const char* const kernel_version;\nconst char* const kernel_version = \"${version}\";\n}  // namespace farthing\n"
)
