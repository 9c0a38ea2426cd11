"""`lightning_job` with batches by length, for test_length_batches.

    torchrun --nproc_per_node N tests/length_lightning_job.py FOLDER RANKS FITS

Each line of a log is [stage, epoch, ids, shape of the tokens].
"""

import json
import sys

import lightning_job
from length_loaders import LengthLoaders, row
from torchdata.stateful_dataloader import StatefulDataLoader


def make_loader(files, kind, **options):
    loaders = LengthLoaders(files.removesuffix("/train-*"))
    if kind == "stateful sampler":
        return loaders.sampler(StatefulDataLoader, **options)
    return getattr(loaders, kind)(**options)


class Model(lightning_job.Model):
    """Logs the shapes, too."""

    def note(self, stage, batch):
        self.log_file.write(json.dumps([stage, self.current_epoch, *row(batch)]) + "\n")
        self.log_file.flush()
        return self.layer(batch["id"][:, None].float() / 1000).mean()


if __name__ == "__main__":
    lightning_job.make_loader, lightning_job.Model = make_loader, Model
    lightning_job.main(*sys.argv[1:])
