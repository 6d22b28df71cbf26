// corelane for C++17: what corelane.h gives, owned by objects. Header only.
//
// Errors are thrown as corelane::Error, except by destructors. Objects can be moved, not copied. A
// Model and a Request must not outlive their Runtime. The rules of threads are those of the C header.
#ifndef CORELANE_HPP
#define CORELANE_HPP

#include <corelane.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace corelane {

// What went wrong, in words and as a status.
class Error : public std::runtime_error {
public:
    explicit Error(corelane_status status)
        : std::runtime_error(text(status)), status_(status) {}

    corelane_status status() const noexcept { return status_; }
    const char *name() const noexcept { return corelane_status_name(status_); }

private:
    // The thread's sentence is that of its last call that failed: this one's, if the error is made at once.
    static std::string text(corelane_status status) {
        std::string text = corelane_status_text(status);
        const char *message = corelane_error_message();
        return message[0] == '\0' ? text : text + ": " + message;
    }

    corelane_status status_;
};

// Throws if `status` is an error.
inline corelane_status check(corelane_status status) {
    if (status < 0) throw Error(status);
    return status;
}

// A time as the C functions take it; what is below zero is over.
inline std::uint64_t microseconds(std::chrono::microseconds time) noexcept {
    return time.count() < 0 ? 0u : static_cast<std::uint64_t>(time.count());
}

// Elements of a tensor in memory that somebody else owns; std::span is C++20's.
template <class T> class Span {
public:
    Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}

    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t n) const noexcept { return data_[n]; }

private:
    T *data_;
    std::size_t size_;
};

// The number by which corelane knows a C++ type.
template <class T> constexpr std::int32_t dtype_of() {
    using U = std::remove_cv_t<T>;
    if constexpr (std::is_same_v<U, float>) return CORELANE_DTYPE_F32;
    else if constexpr (std::is_same_v<U, double>) return CORELANE_DTYPE_F64;
    else if constexpr (std::is_same_v<U, std::int8_t>) return CORELANE_DTYPE_I8;
    else if constexpr (std::is_same_v<U, std::uint8_t>) return CORELANE_DTYPE_U8;
    else if constexpr (std::is_same_v<U, std::int16_t>) return CORELANE_DTYPE_I16;
    else if constexpr (std::is_same_v<U, std::uint16_t>) return CORELANE_DTYPE_U16;
    else if constexpr (std::is_same_v<U, std::int32_t>) return CORELANE_DTYPE_I32;
    else if constexpr (std::is_same_v<U, std::uint32_t>) return CORELANE_DTYPE_U32;
    else if constexpr (std::is_same_v<U, std::int64_t>) return CORELANE_DTYPE_I64;
    else if constexpr (std::is_same_v<U, std::uint64_t>) return CORELANE_DTYPE_U64;
    else static_assert(!sizeof(U), "no element type of corelane; use the bytes");
}

class Request;

// A model of a running runtime; cheap to copy.
class Model {
public:
    explicit Model(const corelane_model *model) noexcept : model_(model) {}

    const corelane_model *get() const noexcept { return model_; }
    std::string_view name() const noexcept { return corelane_model_name(model_); }
    std::size_t inputs() const noexcept { return corelane_model_input_count(model_); }
    std::size_t outputs() const noexcept { return corelane_model_output_count(model_); }
    std::uint32_t rows_max() const noexcept { return corelane_model_rows_max(model_); }

    corelane_tensor input(std::size_t index) const {
        corelane_tensor tensor;
        check(corelane_model_describe_input(model_, index, &tensor, sizeof tensor));
        return tensor;
    }

    corelane_tensor output(std::size_t index) const {
        corelane_tensor tensor;
        check(corelane_model_describe_output(model_, index, &tensor, sizeof tensor));
        return tensor;
    }

    // The label of a class; empty if there is none.
    std::string_view label(std::size_t index) const noexcept {
        const char *text = corelane_model_label(model_, index);
        return text == nullptr ? std::string_view() : std::string_view(text);
    }

    inline Request request(std::uint32_t rows = 1) const;

private:
    const corelane_model *model_;
};

// A request: fill it, run it, read it. Freed with the object, whatever it is at.
class Request {
public:
    Request(const Model &model, std::uint32_t rows) : model_(model) {
        corelane_request *request = nullptr;
        check(corelane_request_new(model.get(), rows, &request));
        request_.reset(request);
    }

    corelane_request *get() const noexcept { return request_.get(); }
    std::uint32_t rows() const noexcept { return corelane_request_rows(get()); }

    // Input `index`, in its slot.
    template <class T> Span<T> input(std::size_t index) {
        expect(model_.input(index).dtype, dtype_of<T>());
        void *data = nullptr;
        std::size_t bytes = 0;
        check(corelane_request_input(get(), index, &data, &bytes));
        return {static_cast<T *>(data), bytes / sizeof(T)};
    }

    // Output `index`, in its slot; gone with the request.
    template <class T> Span<const T> output(std::size_t index) const {
        expect(model_.output(index).dtype, dtype_of<T>());
        const void *data = nullptr;
        std::size_t bytes = 0;
        check(corelane_request_output(get(), index, &data, &bytes));
        return {static_cast<const T *>(data), bytes / sizeof(T)};
    }

    Request &deadline(std::chrono::microseconds deadline) {
        const auto us = deadline.count();
        const bool fits = us >= 0 && us <= static_cast<std::int64_t>(UINT32_MAX);
        check(corelane_request_set_deadline(get(), fits ? static_cast<std::uint32_t>(us)
                                                        : UINT32_MAX));
        return *this;
    }

    Request &priority(std::uint8_t priority) {
        check(corelane_request_set_priority(get(), priority));
        return *this;
    }

    // Submits, and waits until it ends.
    void infer() { check(corelane_request_infer(get())); }

    void submit() { check(corelane_request_submit(get())); }

    // Whether the answer is there.
    bool poll() { return check(corelane_request_poll(get())) == CORELANE_STATUS_OK; }

    // Waits until it ends.
    void wait() { check(corelane_request_wait(get(), CORELANE_WAIT_FOREVER)); }

    // Whether the answer came in time; if not, it may still come.
    bool wait_for(std::chrono::microseconds time) {
        const corelane_status status = corelane_request_wait(get(), microseconds(time));
        return status != CORELANE_STATUS_TIMEOUT && check(status) == CORELANE_STATUS_OK;
    }

    corelane_receipt receipt() const {
        corelane_receipt receipt;
        check(corelane_request_receipt(get(), &receipt, sizeof receipt));
        return receipt;
    }

    // Submits; `done(Request, corelane_status)` is called by Runtime::dispatch when it has ended. It
    // must not throw. The function is kept on the heap until then. If the Runtime is destroyed before,
    // the function is destroyed without being called: what it refers to may be gone.
    template <class F> static void submit(Request request, F done) {
        auto call = std::make_unique<Call<F>>(Call<F>{request.model_, std::move(done)});
        const auto run = [](corelane_request *ended, corelane_status status, void *user) noexcept {
            std::unique_ptr<Call<F>> kept(static_cast<Call<F> *>(user));
            Request back(kept->model, ended);
            undelivered()--;
            if (!closing()) kept->done(std::move(back), status);
        };
        check(corelane_request_submit_callback(request.get(), run, call.get()));
        undelivered()++;
        request.request_.release();
        call.release();
    }

private:
    friend class Runtime;

    template <class F> struct Call {
        Model model;
        F done;
    };

    // Functions that are not called yet, of all runtimes.
    static std::atomic<long> &undelivered() noexcept {
        static std::atomic<long> count{0};
        return count;
    }

    // Whether this thread destroys a runtime.
    static bool &closing() noexcept {
        static thread_local bool is = false;
        return is;
    }

    struct Free {
        void operator()(corelane_request *request) const noexcept {
            corelane_request_free(request);
        }
    };

    Request(const Model &model, corelane_request *request) noexcept
        : model_(model), request_(request) {}

    static void expect(std::int32_t is, std::int32_t wanted) {
        if (is != wanted)
            throw std::invalid_argument("the tensor has another element type (corelane_dtype " +
                                        std::to_string(is) + ", not " + std::to_string(wanted) +
                                        ")");
    }

    Model model_;
    std::unique_ptr<corelane_request, Free> request_;
};

inline Request Model::request(std::uint32_t rows) const { return Request(*this, rows); }

// What a runtime is made from.
class Builder {
public:
    Builder() {
        corelane_builder *builder = nullptr;
        check(corelane_builder_new(&builder));
        builder_.reset(builder);
    }

    const corelane_builder *get() const noexcept { return builder_.get(); }

    Builder &model(const std::string &path) {
        check(corelane_builder_add_model(builder_.get(), path.c_str()));
        return *this;
    }

    Builder &config(const std::string &path) {
        check(corelane_builder_read_config(builder_.get(), path.c_str()));
        return *this;
    }

    Builder &cores(const std::vector<std::uint32_t> &cores) {
        check(corelane_builder_set_cores(builder_.get(), cores.data(), cores.size()));
        return *this;
    }

    Builder &unpinned(std::size_t workers) {
        check(corelane_builder_set_unpinned(builder_.get(), workers));
        return *this;
    }

    Builder &idle(corelane_idle idle, std::uint32_t spin_us = 0) {
        check(corelane_builder_set_idle(builder_.get(), idle, spin_us));
        return *this;
    }

    Builder &wait_spins(std::uint32_t spins) {
        check(corelane_builder_set_wait_spins(builder_.get(), spins));
        return *this;
    }

private:
    struct Free {
        void operator()(corelane_builder *builder) const noexcept {
            corelane_builder_free(builder);
        }
    };

    std::unique_ptr<corelane_builder, Free> builder_;
};

// A running runtime. The destructor stops it, and takes back what dispatch() has not delivered, without
// calling anybody; call stop() to learn how that went.
class Runtime {
public:
    explicit Runtime(const Builder &builder) {
        corelane_runtime *runtime = nullptr;
        check(corelane_runtime_start(builder.get(), &runtime));
        runtime_.reset(runtime);
    }

    corelane_runtime *get() const noexcept { return runtime_.get(); }

    Model model(const std::string &name) const {
        const corelane_model *model = nullptr;
        check(corelane_runtime_find_model(get(), name.c_str(), &model));
        return Model(model);
    }

    std::vector<Model> models() const {
        std::vector<Model> models;
        for (std::size_t n = 0; n < corelane_runtime_model_count(get()); n++)
            models.emplace_back(corelane_runtime_model(get(), n));
        return models;
    }

    // For an event loop: readable when dispatch() has something to do.
    int event_fd() const noexcept { return corelane_runtime_event_fd(get()); }

    // Calls the functions of the requests that have ended; returns how many.
    std::uint32_t dispatch(std::chrono::microseconds wait = {}) {
        std::uint32_t called = 0;
        check(corelane_runtime_dispatch(get(), microseconds(wait), &called));
        return called;
    }

    // Counters and histograms, as JSON.
    std::string stats() const {
        std::string text;
        std::size_t needed = 1;
        corelane_status status = CORELANE_STATUS_WRONG_SIZE;
        // Numbers may grow by a digit between two calls.
        while (status == CORELANE_STATUS_WRONG_SIZE) {
            text.resize(needed);
            status = corelane_runtime_write_stats(get(), text.data(), text.size(), &needed);
        }
        check(status);
        text.resize(needed - 1);
        return text;
    }

    // Answers what was accepted, and ends. If it throws, the runtime is there still.
    void stop(std::chrono::microseconds patience = std::chrono::seconds(10)) {
        check(corelane_runtime_stop(get(), microseconds(patience)));
        runtime_.release();
    }

private:
    struct Stop {
        // A Request that outlives its runtime keeps it: it is leaked rather than pulled away.
        void operator()(corelane_runtime *runtime) const noexcept {
            const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
            Request::closing() = true;
            while (corelane_runtime_stop(runtime, 10'000'000) == CORELANE_STATUS_IN_USE &&
                   Request::undelivered() > 0 && std::chrono::steady_clock::now() < end)
                corelane_runtime_dispatch(runtime, 100'000, nullptr);
            Request::closing() = false;
        }
    };

    std::unique_ptr<corelane_runtime, Stop> runtime_;
};

// Calls of the system allocator on workers, of all runtimes; 0, if the promise is kept.
inline std::uint64_t hot_allocations() {
    std::uint64_t calls = 0;
    check(corelane_runtime_hot_allocations(&calls));
    return calls;
}

} // namespace corelane

#endif
