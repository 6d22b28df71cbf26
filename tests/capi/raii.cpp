// The C++ header's rules. Arguments: models/mlp, a fake model of 20 ms.
#include <corelane.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition);        \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

template <class F> static corelane_status thrown(F f) {
    try {
        f();
    } catch (const corelane::Error &error) {
        // What the status means, and this call's own sentence.
        const std::string what = error.what(), text = corelane_status_text(error.status());
        CHECK(what == text + ": " + corelane_error_message() && what.size() > text.size() + 10);
        return error.status();
    }
    return CORELANE_STATUS_OK;
}

static_assert(!std::is_copy_constructible_v<corelane::Request>);
static_assert(!std::is_copy_constructible_v<corelane::Runtime>);
static_assert(std::is_nothrow_move_constructible_v<corelane::Request>);

int main(int argc, char **argv) {
    using namespace std::chrono_literals;
    CHECK(argc == 3);
    CHECK(thrown([] { corelane::Runtime(corelane::Builder().model("/no/such/model")); }) ==
          CORELANE_STATUS_MODEL);
    corelane::Runtime runtime(corelane::Builder().model(argv[1]).model(argv[2]).unpinned(1));
    CHECK(runtime.models().size() == 2);
    CHECK(thrown([&] { runtime.model("nothing"); }) == CORELANE_STATUS_NOT_FOUND);
    const auto mlp = runtime.model("mlp");
    const auto slow = runtime.model("slow");
    CHECK(mlp.name() == "mlp" && mlp.inputs() == 1 && mlp.input(0).row_bytes == 256);
    CHECK(mlp.rows_max() > 1 && mlp.label(1000).empty());

    auto request = mlp.request(2);
    CHECK(request.rows() == 2 && request.input<float>(0).size() == 128);
    for (float &value : request.input<float>(0)) value = 0.5f;
    try {
        request.input<std::int8_t>(0);
        CHECK(!"a wrong type is refused");
    } catch (const std::invalid_argument &) {
    }
    request.infer();
    const auto rows = request.output<float>(0);
    CHECK(rows.size() == 20 && rows[0] == rows[10]);
    CHECK(request.receipt().batch_size == 2);
    CHECK(thrown([&] { request.submit(); }) == CORELANE_STATUS_WRONG_STATE);

    // Moved, and given up by going out of scope while it runs.
    {
        auto moved = slow.request();
        moved.input<std::uint8_t>(0)[0] = 9;
        moved.submit();
        // A machine that is slow enough has the answer already.
        CHECK(!moved.poll() || moved.wait_for(0s));
        corelane::Request other = std::move(moved);
        other.wait();
        CHECK(other.output<std::uint8_t>(0)[0] == 9);
        auto left = slow.request();
        left.submit();
    }
    CHECK(thrown([&] { slow.request().deadline(10us).submit(); }) ==
          CORELANE_STATUS_DEADLINE_UNMEETABLE);
    CHECK(thrown([&] { slow.request().priority(9).infer(); }) == CORELANE_STATUS_BAD_PRIORITY);

    int done = 0;
    corelane_status last = CORELANE_STATUS_PENDING;
    for (std::uint8_t first : {1, 238}) {
        auto next = slow.request();
        next.input<std::uint8_t>(0)[0] = first;
        corelane::Request::submit(std::move(next),
                                  [&](corelane::Request ended, corelane_status status) {
                                      if (status == CORELANE_STATUS_OK)
                                          CHECK(ended.output<std::uint8_t>(0)[0] == 1);
                                      last = status;
                                      done++;
                                  });
    }
    while (done < 2) runtime.dispatch(1s);
    CHECK(last == CORELANE_STATUS_MODEL_FAILED);
    CHECK(runtime.event_fd() >= 0 && runtime.stats().front() == '{');
    CHECK(corelane::hot_allocations() == 0);

    // A failure is told as what it is, whatever failed in between.
    {
        auto bad = slow.request();
        bad.input<std::uint8_t>(0)[0] = 238;
        CHECK(thrown([&] { bad.infer(); }) == CORELANE_STATUS_MODEL_FAILED);
        CHECK(thrown([&] { runtime.model("nobody"); }) == CORELANE_STATUS_NOT_FOUND);
        try {
            bad.wait();
            CHECK(!"it failed");
        } catch (const corelane::Error &error) {
            const std::string what = error.what();
            CHECK(what.find("the model failed") != what.npos && what.find("nobody") == what.npos);
        }
    }

    // Held requests keep their runtime; a time below zero is over.
    CHECK(thrown([&] { runtime.stop(-1s); }) == CORELANE_STATUS_IN_USE);
    { const auto gone = std::move(request); }
    {
        auto running = slow.request();
        running.submit();
        const auto begin = std::chrono::steady_clock::now();
        CHECK(thrown([&] { runtime.stop(-1s); }) == CORELANE_STATUS_IN_USE);
        CHECK(!running.wait_for(-1s) || std::chrono::steady_clock::now() - begin >= 20ms);
    }
    runtime.stop();

    // What is not delivered when a runtime goes is given back uncalled, ended or not, and nothing stays.
    const auto kept = std::make_shared<int>(0);
    {
        corelane::Runtime left(corelane::Builder().model(argv[2]).unpinned(1));
        for (int n = 0; n < 2; n++)
            corelane::Request::submit(left.model("slow").request(),
                                      [kept](corelane::Request, corelane_status) { ++*kept; });
        CHECK(kept.use_count() == 3);
    }
    CHECK(kept.use_count() == 1 && *kept == 0);
    std::puts("every rule holds");
    return 0;
}
