//! Outputs, steps that work in place, and the arena.

use super::*;

impl Lowering<'_> {
    /// Binds the outputs, merges buffers of steps that work in place, and lays out the arena.
    pub(super) fn finish(mut self, batch: usize) -> Result<Plan, EngineError> {
        let mut output_words = vec![];
        for (o, &v) in self.graph.outputs.iter().enumerate() {
            let from = self.plain(v)?;
            let value = &self.graph.values[v];
            let words = words_of(value.dtype, value.len());
            output_words.push(words);
            let buf = self.bufs[from.buf];
            if buf.space.is_none() && from.start == 0 && buf.words == words {
                self.bufs[from.buf].space = Some(Space::Output(o));
                continue;
            }
            self.bufs.push(Buf { words, space: Some(Space::Output(o)) });
            let dest = Place { buf: self.bufs.len() - 1, start: 0, len: words };
            self.drafts.push(Draft {
                kernel: Kernel::Move { copies: vec![Copy::new([(words, 1, 1)], 0, 0)], fill: None },
                sources: vec![from],
                dest,
                scratch: 0,
                in_place: None,
                name: value.name.clone(),
                operator: "output".into(),
                shapes: text(&value.shape),
                flops: 0,
            });
        }
        let mut root: Vec<usize> = (0..self.bufs.len()).collect();
        let mut first = vec![usize::MAX; self.bufs.len()];
        let mut last = vec![0; self.bufs.len()];
        for (i, draft) in self.drafts.iter().enumerate() {
            for place in draft.sources.iter().chain([&draft.dest]) {
                first[place.buf] = first[place.buf].min(i);
                last[place.buf] = last[place.buf].max(i);
            }
        }
        fn find(root: &[usize], mut buf: usize) -> usize {
            while root[buf] != buf {
                buf = root[buf];
            }
            buf
        }
        for (i, draft) in self.drafts.iter_mut().enumerate() {
            let Some(slot) = draft.in_place.take() else { continue };
            let (source, dest) = (draft.sources[slot], draft.dest);
            let (s, d) = (find(&root, source.buf), find(&root, dest.buf));
            let whole = source.start == 0
                && dest.start == 0
                && source.len == dest.len
                && self.bufs[s].words == source.len
                && self.bufs[d].words == dest.len;
            let alone = draft.sources.iter().filter(|p| find(&root, p.buf) == s).count() == 1;
            if whole && alone && self.bufs[s].space.is_none() && last[s] == i && s != d {
                root[s] = d;
                first[d] = first[d].min(first[s]);
                draft.sources.remove(slot);
                draft.in_place = Some(slot);
            }
        }
        let mut needs = vec![];
        let mut need_of = vec![None; self.bufs.len()];
        for (b, buf) in self.bufs.iter().enumerate() {
            if root[b] == b && buf.space.is_none() && first[b] != usize::MAX {
                need_of[b] = Some(needs.len());
                needs.push(memory::Need { words: buf.words, first: first[b], last: last[b] });
            }
        }
        let scratch_from = needs.len();
        for (i, draft) in self.drafts.iter().enumerate() {
            needs.push(memory::Need { words: draft.scratch, first: i, last: i });
        }
        let layout = memory::place(&needs).ok_or_else(|| {
            EngineError::new(EngineErrorKind::Limit, "the arena overflows the address space")
        })?;
        let operand = |place: Place| -> Operand {
            let b = find(&root, place.buf);
            let space = self.bufs[b].space.unwrap_or(Space::Arena);
            let base = need_of[b].map_or(0, |n| layout.offsets[n]);
            Operand { space, start: base + place.start, len: place.len }
        };
        let steps = self
            .drafts
            .iter()
            .enumerate()
            .map(|(i, draft)| Step {
                kernel: draft.kernel.clone(),
                sources: draft.sources.iter().map(|&p| operand(p)).collect(),
                dest: operand(draft.dest),
                scratch: Operand {
                    space: Space::Arena,
                    start: layout.offsets[scratch_from + i],
                    len: draft.scratch,
                },
                name: draft.name.clone(),
                operator: draft.operator.clone(),
                shapes: draft.shapes.clone(),
                flops: draft.flops,
            })
            .collect();
        let input_words = self
            .graph
            .inputs
            .iter()
            .map(|&v| words_of(self.graph.values[v].dtype, self.graph.values[v].len()))
            .collect();
        Ok(Plan {
            batch,
            repeat: 1,
            steps,
            constants: self.constants,
            arena_words: layout.words,
            lower_bound_words: layout.lower_bound_words,
            input_words,
            output_words,
        })
    }
}
