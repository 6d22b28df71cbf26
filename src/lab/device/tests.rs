use super::*;
use crate::board::Board;
use crate::engine::fake::FakeCompute;
use crate::lab::overhead::echo_model;
use crate::units::Rows;

fn model() -> CardModel {
    let mut setup = echo_model(16, &[1, 2, 4], FakeCompute::default()).unwrap();
    setup.max_request_rows = Rows(4);
    CardModel { setup, load: Nanos(5), rows: vec![vec![3; 16]], golden: false }
}

#[test]
fn a_card_has_every_figure_and_its_rows_fit_into_a_boards_file() {
    let cores = affinity::allowed().unwrap();
    let mut told = Vec::new();
    let models = [model()];
    let card =
        measure(&models, &cores, Nanos(1_000_000), |what| told.push(what.to_string())).unwrap();
    assert_eq!(told.len(), figures(&models), "{told:?}");
    let row = &card.models[0];
    assert_eq!((row.load_ns, row.input, row.engine), (5, "zeros", "fake"));
    assert_eq!(row.batches.iter().map(|b| b.batch).collect::<Vec<_>>(), [1, 2, 4]);
    for batch in &row.batches {
        assert!(
            batch.request.count >= 20 && batch.infer.p50_ns <= batch.request.p50_ns,
            "{batch:?}"
        );
    }
    assert_eq!((row.throughput.batch, &row.throughput.cores), (4, &cores));
    assert!(row.throughput.one_rows_per_s > 0.0 && row.throughput.efficiency > 0.0);
    let ways: Vec<&str> = card.ways.iter().map(|w| w.way).collect();
    assert_eq!(ways, ["in process", "unix", "tcp", "serial (pseudo-terminal)"]);
    for way in &card.ways {
        assert!(way.round_trip.is_some() != way.absent.is_some(), "{way:?}");
    }
    assert_eq!(card.wake_up.count, WAKE_UPS as u64);
    assert!(card.peak_memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    // The rows are read by the board's own parser.
    let file = include_str!("../../../boards/rpi5.toml");
    let board =
        Board::parse("rpi5", "rpi5.toml", &format!("{file}\n{}", card.board_rows())).unwrap();
    let measured = board.measured.last().unwrap();
    assert_eq!(measured.model, "echo16");
    assert!(measured.ms > 0.0 && measured.how.contains("one worker on core"), "{measured:?}");
}

#[test]
fn a_box_of_time_is_what_the_budget_gives_or_nothing() {
    assert_eq!(time_box(10, Nanos(10_000_000_000)), Some(Nanos(700_000_000)));
    assert_eq!(time_box(10, Nanos(1_000_000_000_000)), Some(Nanos(2_000_000_000)));
    assert_eq!(time_box(100, Nanos(1_000_000_000)), None);
}
