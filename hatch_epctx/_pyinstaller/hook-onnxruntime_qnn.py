"""The EP's libraries stay in one folder: each looks for the others, and for its plugins, beside itself."""

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs

datas = collect_data_files("onnxruntime_qnn")
binaries = collect_dynamic_libs("onnxruntime_qnn", search_patterns=["*.so*", "*.dll"])
bindepend_symlink_suppression = ["**/onnxruntime_qnn/*"]
