/* The parser alone as a Python type, for the tests that compare it with the other engine's. */
#ifndef TALKA_PARSER_OBJECT_H
#define TALKA_PARSER_OBJECT_H

#include <Python.h>

/* Adds the type `Parser` to the module; -1 with an exception set. */
int parser_add_types(PyObject *module);

#endif
