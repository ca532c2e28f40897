"""The routes of the API, in a folder for each thing. The application takes the `router` of each
module."""
