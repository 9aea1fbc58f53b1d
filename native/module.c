/* The extension talka._native. It serves one interpreter and one event loop's thread; forking it is not supported. */
#include "engine.h"

#include "call.h"
#include "client.h"
#include "connection.h"
#include "pause.h"
#include "response.h"

Known known;

/* Parts that may be left out of a build. Each adds its types to the module, or returns -1 with an exception set. */
__attribute__((weak)) int parser_add_types(PyObject *module);
__attribute__((weak)) int counters_add_types(PyObject *module);
__attribute__((weak)) int schedule_add_types(PyObject *module);
__attribute__((weak)) int driver_add_types(PyObject *module);

static PyObject *taken_from(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    if (module == NULL) {
        return NULL;
    }
    PyObject *value = PyObject_GetAttrString(module, name);
    Py_DECREF(module);
    return value;
}

static int get_to_know(void)
{
    const struct {
        PyObject **place;
        const char *module;
        const char *name;
    } wanted[] = {
        {&known.exchange_failed, "talka.engine.calls", "ExchangeFailed"},
        {&known.current_call, "talka.engine.calls", "current_call"},
        {&known.cancelled_error, "asyncio", "CancelledError"},
        {&known.sleep, "asyncio", "sleep"},
        {&known.http_response, "talka.work.responses", "HTTPResponse"},
        {&known.decode_json, "msgspec.json", "decode"},
        {&known.prepared, "talka.engine.clients.requests", "PREPARED"},
    };
    for (size_t index = 0; index < sizeof wanted / sizeof wanted[0]; index++) {
        *wanted[index].place = taken_from(wanted[index].module, wanted[index].name);
        if (*wanted[index].place == NULL) {
            return -1;
        }
    }
    return 0;
}

static int add_all(PyObject *module)
{
    if (get_to_know() < 0 || PyModule_AddIntConstant(module, "INTERFACE", TALKA_INTERFACE) < 0 ||
        engine_ready_types(module) < 0 || response_ready_types(module) < 0 || connection_ready_types(module) < 0 ||
        call_ready_types(module) < 0 || pause_ready_types(module) < 0 || client_ready_types(module) < 0) {
        return -1;
    }
    int (*const parts[])(PyObject *) = {parser_add_types, counters_add_types, schedule_add_types, driver_add_types};
    for (size_t index = 0; index < sizeof parts / sizeof parts[0]; index++) {
        if (parts[index] != NULL && parts[index](module) < 0) {
            return -1;
        }
    }
    return 0;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "talka._native",
    .m_doc = "The load engine in C.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && add_all(module) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
