// Stands for the driver's library, which a machine without a GPU lacks: it is linked against and never found.
extern "C" int absent_driver_version() {
  return 1;
}
