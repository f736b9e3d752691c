"""Reads the folders of runs, and shows them: TensorBoard, Weights & Biases, and a report of one page."""
