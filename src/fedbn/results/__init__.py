"""Tables and pictures from run folders: reads record files, never a model."""
