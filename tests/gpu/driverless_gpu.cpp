// A backend's module whose driver is not installed.
extern "C" int absent_driver_version();
extern "C" void* ggml_backend_init() {
  static int driver = absent_driver_version();
  return &driver;
}
