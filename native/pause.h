/* What `await self.pause(...)` of a user awaits. */
#ifndef TALKA_PAUSE_H
#define TALKA_PAUSE_H

#include "engine.h"

/* A pause of so many nanoseconds: a new reference, or NULL with an exception set. */
PyObject *pause_new(Engine *engine, int64_t length_ns);

int pause_ready_types(PyObject *module);

#endif
