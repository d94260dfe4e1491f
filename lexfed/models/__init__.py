"""Models: functions of their parameters. A model holds no weights."""
