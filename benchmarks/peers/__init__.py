"""What other systems' problems cost here, beside what they cost there."""
