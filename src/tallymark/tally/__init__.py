"""What counts as lost, doubled, reordered, late or altered: pure; certificates; resend."""
