"""Trackers, for `--log`: one file a name, holding a function of that name.

A tracker is made by a function of the run folder and the configuration, hears every round of every
job once, in order, and is closed. Rounds that were done before a resume are among them. Your own is
`module:callable`:

```python
class Printed:
    def log(self, job, round, records):
        method, setting, seed = job

    def done(self, job):
        pass

    def close(self):
        pass


def printed(folder, config):
    return Printed()
```
"""
