"""What guardrun writes for people and scripts: incident.json, report.html, summary.json."""
