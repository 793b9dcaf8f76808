"""The demo around them: what is started, who decides, how it is told, and what must hold."""
