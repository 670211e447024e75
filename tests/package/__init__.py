"""What is handed out: the wheel and the sdist."""
