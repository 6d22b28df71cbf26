#include <corelane.h>
#include <stdio.h>
int main(int argc, char **argv) {
    corelane_builder *b; corelane_runtime *r; float in[64] = {0}, out[10];
    corelane_input from = {in, sizeof in}; corelane_output to = {out, sizeof out};
    if (argc < 2 || corelane_builder_new(&b) || corelane_builder_add_model(b, argv[1]) || corelane_runtime_start(b, &r)) return puts(corelane_error_message()), 1;
    int status = corelane_model_infer(corelane_runtime_model(r, 0), 1, &from, 1, &to, 1, CORELANE_WAIT_FOREVER, NULL, 0);
    printf("%s %.3f\n", corelane_status_name(status), out[0]);
    return corelane_builder_free(b), corelane_runtime_stop(r, 1000000) || status; }
