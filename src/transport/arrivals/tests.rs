use super::*;

const MODEL: ModelId = ModelId(1);

fn arrive(arrivals: &Arrivals, model: ModelId, payload: &[u8]) -> u64 {
    let number = arrivals.note(Arrived { at: Nanos(7), model, rows: Rows(1) });
    arrivals.keep(number, model, payload);
    number
}

fn payloads(arrivals: &Arrivals) -> Vec<Option<Vec<u8>>> {
    arrivals.read_with_payloads().into_iter().map(|(_, payload)| payload).collect()
}

#[test]
fn the_last_payloads_that_fit_are_kept() {
    let arrivals = Arrivals::new(8).with_payloads(MODEL, 10);
    for n in 0..4 {
        arrive(&arrivals, MODEL, &[n; 4]);
    }
    // Twelve bytes would be three of them; ten hold two, the second one around the end.
    let kept = payloads(&arrivals);
    assert_eq!(kept, [None, None, Some(vec![2; 4]), Some(vec![3; 4])]);
    // As long as the ring fits, longer does not, and leaves the others alone.
    arrive(&arrivals, MODEL, &[9; 11]);
    assert_eq!(payloads(&arrivals)[2..], [Some(vec![2; 4]), Some(vec![3; 4]), None]);
    arrive(&arrivals, MODEL, &[5; 10]);
    assert_eq!(payloads(&arrivals)[3..], [None, None, Some(vec![5; 10])]);
}

#[test]
fn arrivals_and_payloads_stay_together_when_arrivals_are_overwritten() {
    let arrivals = Arrivals::new(3).with_payloads(MODEL, 1000);
    for n in 0..5 {
        arrive(&arrivals, MODEL, &[n]);
    }
    assert_eq!(payloads(&arrivals), [Some(vec![2]), Some(vec![3]), Some(vec![4])]);
    // One whose payload never came has not that of the one before it in its place.
    arrivals.note(Arrived { at: Nanos(8), model: MODEL, rows: Rows(1) });
    assert_eq!(payloads(&arrivals), [Some(vec![3]), Some(vec![4]), None]);
    // Payloads of other models are not kept.
    arrive(&arrivals, ModelId(0), &[6]);
    assert_eq!(payloads(&arrivals), [Some(vec![4]), None, None]);
}

#[test]
fn without_payloads_there_are_none() {
    let arrivals = Arrivals::new(3);
    arrive(&arrivals, MODEL, &[1]);
    assert_eq!(payloads(&arrivals), [None]);
}
