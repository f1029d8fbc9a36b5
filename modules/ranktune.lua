-- Lmod modulefile of an installed ranktune. It finds the prefix from its own place, so the prefix can be moved:
--   module use PREFIX/share/ranktune/modules
--   module load ranktune
local prefix = myFileName():gsub("/share/ranktune/modules/.*$", "")

whatis("Name: ranktune")
whatis("Version: " .. myModuleVersion())
whatis("Description: fine-tuning of large language models as an MPI program, one rank per GPU")
help([[
ranktune fine-tunes large language models: mpirun -np 2 ranktune train --model_name DIR --dataset FILE

Job scripts that work as they are lie in $RANKTUNE_PREFIX/share/ranktune/job_scripts:
  sbatch $RANKTUNE_PREFIX/share/ranktune/job_scripts/ranktune-srun.sbatch --model_name DIR --dataset FILE
]])

-- The MPI that ranktune was built with has to be loaded beside it, where it is a module of its own.
setenv("RANKTUNE_PREFIX", prefix)
prepend_path("PATH", pathJoin(prefix, "bin"))
