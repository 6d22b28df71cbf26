//! Two careless changes, and what finds them.
//!
//! Both are changes that pass every functional test: each request is answered, and correctly. They are
//! made around the model of a server with two workers (`tests/cli/story.rs`), measured in turns with
//! the plain build, and compared. The figures below are of one run of these tests on a machine with two
//! cores that had other work to do meanwhile: the generator was late by up to 5 ms, so that `load` called
//! these runs INVALID. The effects are larger than that, and the tests look past it; a figure that is to
//! be believed to the percent needs a quiet machine. `.ci/run story` makes them anew, and fails if the
//! lab does not find what it finds here.
//!
//! # A lock that is held too long
//! Somebody adds a cache of answers, and holds its lock while a missing answer is computed:
//!
//! ```ignore
//! fn careless_look_up(&self, misses: &Mutex<u64>) {
//!     let mut misses = misses.lock().unwrap();
//!     self.run_model();
//!     *misses += 1;
//! }
//! ```
//! Two workers now take turns. One request after the other, nothing is to be seen; at a rate that needs
//! both workers, requests pile up. An open loop sees that, since a request counts from when it was due:
//!
//! ```console
//! corelane load --connect unix:plain.sock --against unix:lock.sock --profile poisson --rate 300 --duration 2 --flame-graph --out plain --against-out lock
//! corelane compare plain lock --gate gate.toml --out comparison
//! ```
//! With `latency_p99 = "10%"` in `gate.toml`, the second command ended with exit code 1:
//!
//! ```text
#![doc = include_str!("story/lock.txt")]
//! ```
//!
#![doc = include_str!("story/lock-percentiles.svg")]
//!
//! Which function it is says the difference of the two flame graphs: the share of CPU time with
//! `careless_look_up` on the stack went from nothing to nearly all of the model's. It is the only function
//! whose share moved by more than the samples may vary. Waiting itself takes no CPU time and is in no
//! flame graph; what is seen is the work that is done under the lock.
//!
#![doc = include_str!("story/lock-flame.svg")]
//!
//! # A copy too many
//! Somebody copies each payload once more, byte by byte. For a request of one row that is less than 2 %
//! of its time, and under a Poisson load with requests of one row no latency is told apart. The profile
//! `heavy-tailed` has requests of up to 16 rows, and there the p99 tells. (That the copy costs CPU time is
//! seen on both. A second run of this test, while the machine had four times the work that its cores can
//! do, told the Poisson profile apart too: there, a copy waits for a core. So this test needs a machine
//! with a core to spare.)
//!
//! ```text
#![doc = include_str!("story/copy.txt")]
//! ```
//!
#![doc = include_str!("story/copy-percentiles.svg")]
//!
//! So measure with more than one profile: what is bad for some requests only is in no mean and in no
//! steady load.
//!
//! # How sure a verdict is
//! The same build was measured against itself, and against one whose model computes 10 % more, in pairs
//! of runs of five repeats of 0.6 seconds at 200 requests per second, each repeat in turns with the
//! other side's, on the same busy machine. `compare` said of them:
//!
//! ```text
#![doc = include_str!("story/pairs.txt")]
//! ```
//!
//! What keeps the verdicts honest: both sides see the same arrivals; the unit of the test is the repeat,
//! not the request, since requests of a repeat share what the machine did meanwhile; a change must be
//! both unlikely by chance and at least 3 %; and where fixed work took longer in one run, a change in
//! the same direction is called unclear ([`lab::compare`](crate::lab::compare)). What they can't do is
//! see an effect that is smaller than the machine's own noise: measure longer, or on a quiet machine.
