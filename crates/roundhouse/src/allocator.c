// What the allocator of an engine has freed goes back to the system at once: an engine works in bursts and is idle in
// between. Without it the allocator keeps that for a second, and then for as long as nothing more is freed.

#include <features.h>

extern void mi_option_set_default(int option, long value);

// `mi_option_purge_delay` of mimalloc.h, in milliseconds.
#define PURGE_DELAY 15

// Before main, and before the allocator reads its options. A variable MIMALLOC_PURGE_DELAY still counts, for whoever
// wants to try another one.
__attribute__((constructor(101))) static void give_back_at_once(int argc, char **argv) {
#ifdef __GLIBC__
  const char *command = argc > 1 ? argv[1] : "";
  for (const char *engine = "engine"; *engine == *command; engine++, command++) {
    if (*engine == '\0') {
      mi_option_set_default(PURGE_DELAY, 0);
      return;
    }
  }
#else
  // Other C libraries do not say here what command it is; all of them work with it.
  (void)argc;
  (void)argv;
  mi_option_set_default(PURGE_DELAY, 0);
#endif
}
