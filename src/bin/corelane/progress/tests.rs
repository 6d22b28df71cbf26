use super::line;

#[test]
fn the_line_tells_what_is_left_from_what_is_done() {
    let begin = line(0, 10, 0.0, "batch 1");
    assert_eq!(begin, "[........................] 0 of 10, no estimate yet: batch 1");
    let half = line(5, 10, 20.0, "batch 8");
    assert_eq!(half, "[############............] 5 of 10, about 20 s left: batch 8");
    assert!(line(10, 10, 40.0, "").contains("10 of 10, about 0 s left"));
}
