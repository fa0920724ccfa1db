"""The run folder: configuration, metrics and checkpoints on disk, none of which can be half there.

```
RUN/
  config.toml        the resolved configuration
  environment.json   versions, seeds, threads, hashes of the data
  metrics.jsonl      one record a line, in the order of the jobs
  splits.json.gz     the samples of each client that are for training, validation and testing
  warnings.jsonl     the warnings that the run gave; not there if it gave none
  run.log            all messages with their times, for whoever looks for a cause
  checkpoints/METHOD/SETTING/seed-S/
    metrics.jsonl    the records of this job, as its rounds end
    round-NNNNNN/    state.safetensors, manifest.json
```
"""
