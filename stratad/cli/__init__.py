"""`stratactl`: one module for each subcommand, imported when it is asked for."""
