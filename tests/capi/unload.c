/* Loads the library, starts, infers, stops, and unloads it, three times: nothing of it is left. The
 * library is reached by dlopen alone. Arguments: the library, a model.
 */
#include <corelane.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition);             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static int mapped(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");

    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
        found += strstr(line, "libcorelane") != NULL;
    fclose(maps);
    return found;
}

/* A function of the library; ISO C has no cast from what dlsym gives. */
#define FUNCTION(name)                                                                             \
    do {                                                                                           \
        void *symbol = dlsym(library, "corelane_" #name);                                          \
        CHECK(symbol != NULL);                                                                     \
        memcpy(&name, &symbol, sizeof symbol);                                                     \
    } while (0)

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    for (int round = 0; round < 3; round++) {
        corelane_status (*builder_new_abi)(uint32_t, corelane_builder **);
        corelane_status (*builder_add_model)(corelane_builder *, const char *);
        corelane_status (*builder_set_unpinned)(corelane_builder *, size_t);
        corelane_status (*runtime_start)(const corelane_builder *, corelane_runtime **);
        const corelane_model *(*runtime_model)(const corelane_runtime *, size_t);
        corelane_status (*request_new)(const corelane_model *, uint32_t, corelane_request **);
        corelane_status (*request_infer)(corelane_request *);
        corelane_status (*request_free)(corelane_request *);
        corelane_status (*runtime_stop)(corelane_runtime *, uint64_t);
        void (*builder_free)(corelane_builder *);
        const char *(*error_message)(void);
        corelane_builder *builder;
        corelane_runtime *runtime;
        corelane_request *request;
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);

        if (library == NULL)
            fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL && mapped() > 0);
        FUNCTION(builder_new_abi);
        FUNCTION(builder_add_model);
        FUNCTION(builder_set_unpinned);
        FUNCTION(runtime_start);
        FUNCTION(runtime_model);
        FUNCTION(request_new);
        FUNCTION(request_infer);
        FUNCTION(request_free);
        FUNCTION(runtime_stop);
        FUNCTION(builder_free);
        FUNCTION(error_message);
        CHECK(builder_new_abi(CORELANE_ABI_VERSION, &builder) == 0);
        CHECK(builder_add_model(builder, "/no/such/model") == 0);
        CHECK(runtime_start(builder, &runtime) == CORELANE_STATUS_MODEL);
        CHECK(strstr(error_message(), "/no/such/model") != NULL);
        builder_free(builder);
        CHECK(builder_new_abi(CORELANE_ABI_VERSION, &builder) == 0);
        CHECK(builder_add_model(builder, argv[2]) == 0 && builder_set_unpinned(builder, 1) == 0);
        CHECK(runtime_start(builder, &runtime) == 0);
        builder_free(builder);
        CHECK(request_new(runtime_model(runtime, 0), 1, &request) == 0);
        CHECK(request_infer(request) == 0 && request_free(request) == 0);
        CHECK(runtime_stop(runtime, 1000000) == 0);
        CHECK(dlclose(library) == 0);
        printf("round %d: %d mappings are left\n", round, mapped());
        CHECK(mapped() == 0);
    }
    return 0;
}
