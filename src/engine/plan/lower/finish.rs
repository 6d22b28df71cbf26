//! Outputs, steps that work in place, and the arena.

use super::*;
use crate::engine::plan::turns::{self, Cost, Segment, Share};

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
        let shares = self.shares(batch);
        let lengths: Vec<Vec<usize>> =
            self.drafts.iter().map(|d| d.sources.iter().map(|s| s.len).collect()).collect();
        let slots = self.merge();
        let segments = turns::cut(&self.costs(&shares, &slots), batch);
        // What runs in turns, on one turn's rows.
        for segment in segments.iter().filter(|s| s.turns > 1) {
            for i in segment.steps.clone() {
                let draft = &mut self.drafts[i];
                let cut = turns::part(&draft.kernel, segment.turns, &lengths[i], draft.dest.len);
                let (kernel, _) = cut.ok_or_else(|| {
                    let text = "a step that runs in turns can't be cut";
                    EngineError::new(EngineErrorKind::Internal, text).at_node(&draft.name)
                })?;
                draft.scratch = kernel.scratch_len(draft.scratch);
                draft.kernel = kernel;
            }
        }
        let roots: Vec<usize> = (0..self.bufs.len()).map(|b| self.root(b)).collect();
        let used = self.uses(&segments, &roots);
        let mut needs = vec![];
        let mut need_of = vec![None; self.bufs.len()];
        for (b, (buf, used)) in self.bufs.iter().zip(&used).enumerate() {
            if let (None, Some(used)) = (buf.space, used) {
                need_of[b] = Some(needs.len());
                let words = buf.words / used.turns;
                needs.push(memory::Need { words, first: used.first, last: used.last });
            }
        }
        let scratch_from = needs.len();
        for (i, draft) in self.drafts.iter().enumerate() {
            needs.push(memory::Need { words: draft.scratch, first: i, last: i });
        }
        let layout = memory::place(&needs).ok_or_else(|| {
            EngineError::new(EngineErrorKind::Limit, "the arena overflows the address space")
        })?;
        let operand = |place: Place, turns: usize, share: Share| -> Operand {
            let b = roots[place.buf];
            let space = self.bufs[b].space.unwrap_or(Space::Arena);
            let base = need_of[b].map_or(0, |n| layout.offsets[n]);
            let start = base + place.start;
            if turns == 1 || share == Share::Whole {
                return Operand { space, start, len: place.len, step: 0 };
            }
            let len = place.len / turns;
            // A buffer of this segment alone is as long as one turn needs.
            let own = used[b].is_some_and(|used| used.turns == turns) && space == Space::Arena;
            Operand { space, start, len, step: if own { 0 } else { len } }
        };
        let mut steps = vec![];
        for segment in &segments {
            for i in segment.steps.clone() {
                let draft = &self.drafts[i];
                let mut share = shares[i].clone().unwrap_or_default();
                if let Some(slot) = slots[i]
                    && slot < share.len()
                {
                    share.remove(slot);
                }
                share.resize(draft.sources.len(), Share::Whole);
                steps.push(Step {
                    kernel: draft.kernel.clone(),
                    sources: (draft.sources.iter().zip(&share))
                        .map(|(&p, &share)| operand(p, segment.turns, share))
                        .collect(),
                    dest: operand(draft.dest, segment.turns, Share::Part),
                    scratch: Operand {
                        space: Space::Arena,
                        start: layout.offsets[scratch_from + i],
                        len: draft.scratch,
                        step: 0,
                    },
                    name: draft.name.clone(),
                    operator: draft.operator.clone(),
                    shapes: draft.shapes.clone(),
                    flops: draft.flops,
                });
            }
        }
        let input_words = self
            .graph
            .inputs
            .iter()
            .map(|&v| words_of(self.graph.values[v].dtype, self.graph.values[v].len()))
            .collect();
        Ok(Plan {
            batch,
            steps,
            segments,
            constants: self.constants,
            arena_words: layout.words,
            lower_bound_words: layout.lower_bound_words,
            input_words,
            output_words,
        })
    }

    /// The buffer that holds `buf` since steps that work in place were merged.
    fn root(&self, mut buf: usize) -> usize {
        while self.merged[buf] != buf {
            buf = self.merged[buf];
        }
        buf
    }

    /// How each step takes its sources in turns; none for a step that can't run in turns.
    ///
    /// A buffer is in rows if it is as many equal parts one after the other as the batch has rows, each
    /// made from the same row of the inputs alone: the inputs are, and what [`turns::part`] cuts stays so.
    fn shares(&self, batch: usize) -> Vec<Option<Vec<Share>>> {
        if batch == 1 {
            return vec![None; self.drafts.len()];
        }
        let mut in_rows: Vec<bool> = (self.bufs.iter())
            .map(|b| matches!(b.space, Some(Space::Input(_))) && b.words.is_multiple_of(batch))
            .collect();
        for (&v, rows) in self.graph.inputs.iter().zip(&mut in_rows) {
            // Rows of a part of a word are not parts of it.
            let value = &self.graph.values[v];
            *rows &=
                (value.len() * value.dtype.size_bytes()).is_multiple_of(batch * size_of::<f32>());
        }
        let whole = |p: &Place| p.start == 0 && p.len == self.bufs[p.buf].words;
        let constant = |p: &Place| matches!(self.bufs[p.buf].space, Some(Space::Const(_)));
        let mut all = vec![];
        for draft in &self.drafts {
            let lengths: Vec<usize> = draft.sources.iter().map(|s| s.len).collect();
            let shares = turns::part(&draft.kernel, batch, &lengths, draft.dest.len)
                .map(|(_, shares)| shares)
                .filter(|shares| {
                    whole(&draft.dest)
                        && draft.sources.iter().zip(shares).all(|(p, share)| match share {
                            Share::Part => whole(p) && (in_rows[p.buf] || constant(p)),
                            Share::Whole => constant(p),
                        })
                });
            in_rows[draft.dest.buf] = shares.is_some();
            all.push(shares);
        }
        all
    }

    /// Merges buffers of steps that work in place. Returns which source each step then lacks.
    fn merge(&mut self) -> Vec<Option<usize>> {
        self.merged = (0..self.bufs.len()).collect();
        let mut last = vec![0; self.bufs.len()];
        for (i, draft) in self.drafts.iter().enumerate() {
            for place in draft.sources.iter().chain([&draft.dest]) {
                last[place.buf] = i;
            }
        }
        let mut slots = vec![];
        for i in 0..self.drafts.len() {
            let draft = &self.drafts[i];
            let taken = draft.in_place.filter(|&slot| {
                let (source, dest) = (draft.sources[slot], draft.dest);
                let (s, d) = (self.root(source.buf), self.root(dest.buf));
                let whole = source.start == 0
                    && dest.start == 0
                    && source.len == dest.len
                    && self.bufs[s].words == source.len
                    && self.bufs[d].words == dest.len;
                let alone = draft.sources.iter().filter(|p| self.root(p.buf) == s).count() == 1;
                whole && alone && self.bufs[s].space.is_none() && last[s] == i && s != d
            });
            if let Some(slot) = taken {
                let (s, d) = (self.root(draft.sources[slot].buf), self.root(draft.dest.buf));
                self.merged[s] = d;
                self.drafts[i].sources.remove(slot);
            }
            slots.push(taken);
        }
        slots
    }

    /// Which steps touch each buffer, and how many turns it is the rows of one of: more than one only
    /// where it lives within one segment.
    fn uses(&self, segments: &[Segment], roots: &[usize]) -> Vec<Option<Used>> {
        let mut uses: Vec<Option<Used>> = vec![None; self.bufs.len()];
        for segment in segments {
            for i in segment.steps.clone() {
                let draft = &self.drafts[i];
                for place in draft.sources.iter().chain([&draft.dest]) {
                    let new = Used { first: i, last: i, turns: segment.turns };
                    let used = uses[roots[place.buf]].get_or_insert(new);
                    if used.first < segment.steps.start {
                        used.turns = 1;
                    }
                    used.last = i;
                }
            }
        }
        // Every turn touches what the segment shares with others.
        for segment in segments.iter().filter(|s| s.turns > 1) {
            let steps = &segment.steps;
            for used in uses.iter_mut().flatten().filter(|u| u.turns == 1) {
                if steps.contains(&used.first) {
                    used.first = steps.start;
                }
                if steps.contains(&used.last) {
                    used.last = steps.end - 1;
                }
            }
        }
        uses
    }

    /// What each step costs; `slots` are the sources that steps lack since they work in place.
    fn costs(&self, shares: &[Option<Vec<Share>>], slots: &[Option<usize>]) -> Vec<Cost> {
        let bytes = |words: usize| words * size_of::<f32>();
        let whole = [Segment { steps: 0..self.drafts.len(), turns: 1 }];
        let roots: Vec<usize> = (0..self.bufs.len()).map(|b| self.root(b)).collect();
        let uses = self.uses(&whole, &roots);
        let mut maker = vec![None; self.bufs.len()];
        let mut costs = vec![];
        for (i, draft) in self.drafts.iter().enumerate() {
            let space = |p: &Place| self.bufs[roots[p.buf]].space;
            let computed = |p: &&Place| !matches!(space(p), Some(Space::Const(_)));
            let live: usize = (self.bufs.iter().zip(&uses))
                .filter(|(buf, used)| {
                    buf.space.is_none() && used.is_some_and(|u| u.first <= i && i <= u.last)
                })
                .map(|(buf, _)| bytes(buf.words))
                .sum();
            let outside: usize = (draft.sources.iter().chain([&draft.dest]))
                .filter(|p| matches!(space(p), Some(Space::Input(_) | Space::Output(_))))
                .map(|p| bytes(p.len))
                .sum();
            let rows = draft.kernel.product_rows();
            // What a step works on in place it reads, too.
            let in_place = slots[i].map(|_| &draft.dest);
            costs.push(Cost {
                divisible: shares[i].is_some(),
                sources: (draft.sources.iter().chain(in_place).filter(computed))
                    .map(|p| (maker[roots[p.buf]], bytes(p.len)))
                    .collect(),
                dest_bytes: bytes(draft.dest.len),
                live_bytes: live + outside + bytes(draft.scratch),
                weight_bytes: draft.kernel.weight_bytes(),
                product: if rows > 0 { (draft.flops / 2, rows) } else { (0, 0) },
            });
            maker[roots[draft.dest.buf]] = Some(i);
        }
        costs
    }
}

/// The life of a buffer.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// First step that touches it.
    first: usize,
    /// Last step that touches it.
    last: usize,
    /// The part of it that exists at a time is one in so many.
    turns: usize,
}
