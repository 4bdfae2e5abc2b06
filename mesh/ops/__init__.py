"""The operator's API: explain, queue, rerun, resend, control, health, roster, watch. It knows no terminal."""
