// Serves a model inside this program, in C++17.
//
//   c++ -std=c++17 -o embed embed.cpp $(pkg-config --cflags --libs corelane)
//   ./embed models/mlp
#include <corelane.hpp>

#include <cstdio>
#include <iostream>

int main(int argc, char **argv) {
    try {
        // Loaded, checked against its goldens and warm; one pinned worker a core.
        corelane::Runtime runtime(corelane::Builder().model(argc > 1 ? argv[1] : "models/mlp"));
        const corelane::Model mlp = runtime.models().front();

        // No copy: the input is written where the worker reads it, the output read where it wrote.
        auto request = mlp.request(2); // two rows
        float x = 0;
        for (float &value : request.input<float>(0)) value = x++ / 128;
        request.infer();
        for (float y : request.output<float>(0)) std::printf("%.3f ", y);
        std::printf("\n%u rows in the batch\n", request.receipt().batch_size);

        // From an event loop: poll runtime.event_fd(), then dispatch.
        int done = 0;
        for (int n = 0; n < 4; n++) {
            auto next = mlp.request();
            for (float &value : next.input<float>(0)) value = static_cast<float>(n);
            corelane::Request::submit(std::move(next),
                                      [&done](corelane::Request answer, corelane_status status) {
                                          if (status == CORELANE_STATUS_OK)
                                              std::printf("%.3f\n", answer.output<float>(0)[0]);
                                          done++;
                                      });
        }
        while (done < 4) runtime.dispatch(std::chrono::seconds(1));
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}
