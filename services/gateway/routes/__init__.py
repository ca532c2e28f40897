"""The routes of the API. The application takes the `router` of each module."""
