"""What averaged classifiers share: tasks, local training, private tables, evaluation."""
