// How the states of a node are coloured.

export const PILLS = {
  serving: "well",
  recovering: "waiting",
  stopping: "waiting",
  starting: "waiting",
  "catching up": "waiting",
  "refusing writes": "ill",
};
