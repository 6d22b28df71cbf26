/* What the C tests share: checks that say where they failed, and a look at this process. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <corelane.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition);             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* That a call returns a status; if not, its message is said too. */
#define GIVES(call, wanted)                                                                        \
    do {                                                                                           \
        corelane_status gives_status = (call);                                                     \
        if (gives_status != (wanted)) {                                                            \
            fprintf(stderr, "%s:%d: %s gives %s (%s), not %s\n", __FILE__, __LINE__, #call,        \
                    corelane_status_name(gives_status), corelane_error_message(),                  \
                    corelane_status_name(wanted));                                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define OK(call) GIVES(call, CORELANE_STATUS_OK)

/* That the last error's message has a part. */
#define SAYS(part)                                                                                 \
    do {                                                                                           \
        if (strstr(corelane_error_message(), part) == NULL) {                                      \
            fprintf(stderr, "%s:%d: \"%s\" does not say \"%s\"\n", __FILE__, __LINE__,             \
                    corelane_error_message(), part);                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Entries of a directory such as /proc/self/task. */
static inline int entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = -2; /* . and .. */

    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static inline int threads(void) { return entries("/proc/self/task"); }

/* Whether there are that many threads; one that was joined is listed for a moment longer. */
static inline int threads_are(int count)
{
    for (int n = 0; n < 5000 && threads() != count; n++)
        usleep(1000);
    return threads() == count;
}

/* A field of /proc/self/status, such as SigCgt. */
static inline void status_field(const char *name, char *value, size_t bytes)
{
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");

    CHECK(file != NULL);
    value[0] = '\0';
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            snprintf(value, bytes, "%s", line);
    fclose(file);
    CHECK(value[0] != '\0');
}

/* A runtime with one model and one worker that may run anywhere. */
static inline corelane_runtime *start(const char *model)
{
    corelane_builder *builder;
    corelane_runtime *runtime;

    OK(corelane_builder_new(&builder));
    OK(corelane_builder_add_model(builder, model));
    OK(corelane_builder_set_unpinned(builder, 1));
    OK(corelane_runtime_start(builder, &runtime));
    corelane_builder_free(builder);
    return runtime;
}

#endif
