// All-reduces of float32 by MPI, for two_racks.py: allreduce OUT ITERATIONS SIZE...
// Writes the seconds of each iteration, as this rank saw it, to OUT.RANK: a line of JSON for each size.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 4) MPI_Abort(MPI_COMM_WORLD, 2);
  char name[4096];
  snprintf(name, sizeof name, "%s.%d", argv[1], rank);
  FILE *out = fopen(name, "w");
  if (!out) MPI_Abort(MPI_COMM_WORLD, 1);
  for (int a = 3; a < argc; a++) {
    // SIZE is BYTES:ITERATIONS; the number before the sizes is that of untimed ones.
    long bytes = 0, iterations = 0;
    if (sscanf(argv[a], "%ld:%ld", &bytes, &iterations) != 2) MPI_Abort(MPI_COMM_WORLD, 2);
    long count = bytes / (long)sizeof(float), unmeasured = atol(argv[2]);
    float *from = malloc(bytes), *to = malloc(bytes);
    if (!from || !to) MPI_Abort(MPI_COMM_WORLD, 1);
    for (long i = 0; i < count; i++) from[i] = rank + 1;
    fprintf(out, "{\"bytes\": %ld, \"seconds\": [", bytes);
    for (long i = -unmeasured; i < iterations; i++) {
      MPI_Barrier(MPI_COMM_WORLD);
      double begun = MPI_Wtime();
      MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      double taken = MPI_Wtime() - begun;
      if (i >= 0) fprintf(out, "%s%.9f", i ? ", " : "", taken);
    }
    float expected = ranks * (ranks + 1) / 2;
    if (to[0] != expected || to[count - 1] != expected) MPI_Abort(MPI_COMM_WORLD, 3);
    fprintf(out, "]}\n");
    free(from);
    free(to);
  }
  fclose(out);
  MPI_Finalize();
  return 0;
}
