//! Serves a model inside this program: build, fill a request in its slot, read the answer there.

use corelane::runtime::Runtime;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    // Loaded, checked against its goldens and warm when `build` returns; one pinned worker a core.
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/models");
    let runtime = Runtime::builder().model_dir(format!("{models}/mlp")).build()?;
    let mlp = runtime.client().model("mlp")?;

    // No copy: the input is written where the worker reads it, the output read where it wrote it.
    let mut request = mlp.request(2)?; // two rows
    for (n, x) in request.input_mut::<f32>(0)?.iter_mut().enumerate() {
        *x = n as f32 / 128.0;
    }
    let answer = request.infer()?;
    for row in answer.output::<f32>(0)?.chunks(10) {
        println!("{row:.3?}");
    }
    println!("{:?}", answer.receipt());
    drop(answer); // gives the slot back

    // Several in flight: submit them, then wait for each.
    let mut pending = Vec::new();
    for n in 0..8 {
        let mut request = mlp.request(1)?;
        request.input_mut::<f32>(0)?.fill(n as f32);
        pending.push(request.submit()?);
    }
    for (n, pending) in pending.into_iter().enumerate() {
        println!("{n}: {:.3?}", &pending.wait()?.output::<f32>(0)?[..3]);
    }
    Ok(())
}
